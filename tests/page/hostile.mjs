// Texts that try to run something, to load something, or to look like something else: after the shapes of public
// cheat sheets of cross-site scripting, each in the places where Markdown takes an address or HTML.
export const URLS = [
  'javascript:alert(1)', 'JaVaScRiPt:alert(1)', ' javascript:alert(1)', 'java\tscript:alert(1)', 'java\nscript:alert(1)', '\u0001javascript:alert(1)',
  'javascript&colon;alert(1)', '&#106;avascript:alert(1)', '&#x6A;avascript:alert(1)', '&#0000106avascript:alert(1)', 'javascript&#58;alert(1)',
  'java&Tab;script:alert(1)', 'java&NewLine;script:alert(1)', 'jav&#x09;ascript:alert(1)', 'jav&#x0A;ascript:alert(1)', '\\javascript:alert(1)',
  'java\\script:alert(1)', 'javascript\\:alert(1)', 'javascript://https://a.b/%0aalert(1)', 'vbscript:msgbox(1)', 'VBScript:x', 'data:text/html,<script>alert(1)</script>',
  'data:text/html;base64,PHNjcmlwdD4=', 'DATA:image/svg+xml,<svg onload=alert(1)>', 'file:///etc/passwd', 'blob:https://a.b/1', 'about:blank', 'view-source:https://a.b',
  'ftp://a.b/c', 'ws://a.b', 'intent://a#Intent;end', 'tel:123', 'sms:1', 'x-help:1', '//a.b/c', '/\\a.b', 'http:a.b', 'https:/a.b', 'https:\\\\a.b', 'http://', 'https:///a.b',
  'feed:javascript:alert(1)', 'jar:javascript:alert(1)!/', '\u00a0javascript:alert(1)', '\u2028javascript:alert(1)', 'https\u0000://a.b', '?javascript:alert(1)', '#x',
  'javascript&#00058;alert(1)', 'javascript%3Aalert(1)', '%6Aavascript:alert(1)', 'ｊavascript:alert(1)', 'mailto:', 'mailto:?body=x',
];
const HTML = [
  '<script>alert(1)</script>', '<SCRIPT SRC=https://a.b/x.js></SCRIPT>', '<img src=x onerror=alert(1)>', '<svg/onload=alert(1)>', '<svg><script>alert(1)</script></svg>',
  '<iframe src="javascript:alert(1)"></iframe>', '<body onload=alert(1)>', '<a href="javascript:alert(1)">x</a>', '<a href=https://a.b onclick=alert(1)>x</a>',
  '<style>@import "https://a.b"</style>', '<link rel=stylesheet href=https://a.b>', '<meta http-equiv=refresh content="0;url=https://a.b">', '<base href=https://a.b/>',
  '<object data=x></object><embed src=x>', '<form action=https://a.b><input name=key><button>go', '<math><mtext><table><mglyph><style><img src=x onerror=alert(1)>',
  '<details open ontoggle=alert(1)>', '<video><source onerror=alert(1)>', '<input autofocus onfocus=alert(1)>', '"><script>alert(1)</script>', "'><img src=x onerror=alert(1)>",
  '<!--<img src="--><img src=x onerror=alert(1)>">', '<![CDATA[<script>alert(1)</script>]]>', '<?xml version="1.0"?><script/>', '<x/onmouseover=alert(1)>', '<<script>alert(1)//<</script>',
  '`<script>alert(1)</script>`', '```html\n<script>alert(1)</script>\n```', '    <script>alert(1)</script>', '<template><script>alert(1)</script></template>', '<noscript><p title="</noscript><img src=x onerror=alert(1)>">',
];
export const SHAPES = [
  ...URLS.flatMap((url) => [`[x](${url})`, `[x](<${url}>)`, `![x](${url})`, `![](${url})`, `<${url}>`, url, `[x]\n\n[x]: ${url}`, `[x][y]\n\n[y]: <${url}> "t"`,
    `[![x](${url})](${url})`, `| [x](${url}) |\n|---|\n| <${url}> |`, `# [x](${url})`, `- [x](${url} "t")`]),
  ...HTML.flatMap((text) => [text, `a ${text} b`, `**${text}**`, `> ${text}`, `- ${text}`, `# ${text}`, `| ${text} |\n|---|\n| ${text} |`, `[${text}](https://a.b)`,
    `[x](https://a.b "${text}")`, `![${text}](https://a.b)`, `\`\`\`${text}\nx\n\`\`\``, `~~~ ${text}\nx`, `[${text}]: https://a.b\n\n[${text}]`]),
  '[x](https://a.b" onclick="alert(1))', "[x](https://a.b' onmouseover='alert(1))", '[x](https://a.b "t" onclick=alert(1))', '[x](<https://a.b>onclick=alert(1))', '```js" onload="alert(1)\nx\n```',
  '<https://a.b"onclick="alert(1)>', 'https://a.b"onclick=alert(1)', '[a](https://a.b)[b](javascript:alert(1))', '[__proto__]', '[constructor]: https://a.b\n\n[constructor] [toString]', '[x]: javascript:alert(1)\n[x]: https://a.b\n\n[x]',
  'a\u202Eb\u2066c\u2069', '`a\u202Eb`', '```\na\u202Eb\n```', '[a\u202Eb](https://a.b/\u202Ec "t\u202Eu")', '![a\u202Eb](https://a.b)', '<https://a.b/\u202Ec>', 'https://a.b/\u202Ec', '``` \u202Ejs\nx\n```', '<b title="\u202E">',
];
