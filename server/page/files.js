// Text files that become a part of a message.
const files = (() => {
  const MOST_BYTES = 1 << 20,
    MOST_FILES = 20;

  // {name, text} of a file, or a text that says why not.
  async function read(file) {
    const name =
      (file.name || 'pasted.txt')
        .replace(/[\s`]+/g, ' ')
        .trim()
        .slice(0, 200) || 'file';
    if (file.size > MOST_BYTES) return `${name} is larger than 1 MB`;
    let text;
    try {
      text = new TextDecoder('utf-8', { fatal: true }).decode(await file.arrayBuffer());
    } catch (error) {
      return error instanceof TypeError ? `${name} is no text in UTF-8` : `${name} cannot be read`;
    }
    if (text.includes('\0')) return `${name} is binary`;
    return { name, text: text.replace(/\r\n?/g, '\n') };
  }

  // Those that can be read of a list, and why the others cannot.
  async function readAll(list, already) {
    const texts = [],
      problems = [];
    for (const file of list) {
      if (already + texts.length >= MOST_FILES) {
        problems.push(`A message has at most ${MOST_FILES} files`);
        break;
      }
      const result = await read(file);
      if (typeof result === 'string') problems.push(result);
      else texts.push(result);
    }
    return { texts, problems };
  }

  function sizeOf(text) {
    const bytes = new Blob([text]).size;
    return bytes < 1024 ? `${bytes} bytes` : `${(bytes / 1024).toFixed(bytes < 10240 ? 1 : 0)} KB`;
  }

  return { readAll, sizeOf };
})();
