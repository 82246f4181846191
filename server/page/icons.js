// The page's icons: lines on a field of 24 by 24.
const icons = (() => {
  const SVG = 'http://www.w3.org/2000/svg';
  const LINES = {
    menu: 'M4 7h16M4 12h16M4 17h16',
    plus: 'M12 5v14M5 12h14',
    close: 'M6 6l12 12M18 6L6 18',
    check: 'M5 13l4 4L19 7',
    copy: 'M9 9h10v11H9zM15 9V4H5v11h4',
    edit: 'M4 20l1-4L16 5l3 3L8 19zM14 7l3 3',
    again: 'M19 12a7 7 0 1 1-2.2-5.1M19 4v4h-4',
    on: 'M5 12h13M13 6l6 6-6 6',
    send: 'M12 19V5M6 11l6-6 6 6',
    stop: 'M7 7h10v10H7z',
    left: 'M14 6l-6 6 6 6',
    right: 'M10 6l6 6-6 6',
    down: 'M12 5v14M6 13l6 6 6-6',
    more: 'M5 12h.01M12 12h.01M19 12h.01',
    clip: 'M20 11l-8.5 8.5a5 5 0 0 1-7-7L13 4a3.5 3.5 0 0 1 5 5l-8.5 8.5a2 2 0 0 1-3-3L14 7',
    sliders: 'M4 7h9M17 7h3M4 17h3M11 17h9M15 5v4M9 15v4',
    gear: 'M12 9a3 3 0 1 0 0 6 3 3 0 0 0 0-6zM12 3v3M12 18v3M3 12h3M18 12h3M5.6 5.6l2.1 2.1M16.3 16.3l2.1 2.1M18.4 5.6l-2.1 2.1M7.7 16.3l-2.1 2.1',
    sun: 'M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.4 1.4M17.6 17.6L19 19M19 5l-1.4 1.4M6.4 17.6L5 19',
    moon: 'M20 14.5A8 8 0 0 1 9.5 4a8 8 0 1 0 10.5 10.5z',
    system: 'M4 5h16v11H4zM9 20h6M12 16v4',
    help: 'M9.5 9.5a2.5 2.5 0 1 1 3.5 2.3c-.7.3-1 .8-1 1.7M12 17h.01M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18z',
    file: 'M6 3h8l4 4v14H6zM14 3v4h4',
    waves: 'M3 9q4.5-4 9 0t9 0M3 16q4.5-4 9 0t9 0',
  };

  function draw(name) {
    const svg = document.createElementNS(SVG, 'svg');
    svg.setAttribute('viewBox', '0 0 24 24');
    svg.setAttribute('aria-hidden', 'true');
    svg.dataset.icon = name;
    const path = document.createElementNS(SVG, 'path');
    path.setAttribute('d', LINES[name]);
    svg.append(path);
    return svg;
  }
  return { draw };
})();
