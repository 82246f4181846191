// What a server says of itself, as figures: the text of /metrics read, quantiles, and numbers for people.
const server_figures = (() => {
  'use strict';

  const LINE = /^([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)$/;
  const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

  function labels_of(text) {
    const labels = new Map();
    for (const [, name, value] of (text ?? '').matchAll(LABEL)) labels.set(name, value.replace(/\\(.)/g, '$1'));
    return labels;
  }

  // Prometheus' text format: {total(name), rows(name), histogram(name)}; names without their prefix, which
  // --metrics-prefix may change.
  function metrics(text) {
    const all = new Map();
    let prefix = '';
    for (const line of text.split('\n')) {
      const found = line[0] === '#' ? null : LINE.exec(line);
      if (!found) continue;
      const [, name, labels, value] = found;
      if (name.endsWith('num_requests_running')) prefix = name.slice(0, -'num_requests_running'.length);
      if (!all.has(name)) all.set(name, []);
      all.get(name).push({ labels: labels_of(labels), value: Number(value) });
    }
    const rows = (name) => all.get(prefix + name) ?? all.get(name) ?? [];
    const total = (name) => rows(name).reduce((sum, row) => sum + row.value, 0);
    return { rows, total, histogram: (name) => histogram(rows, total, name) };
  }

  // Counts up to each bound, of all models together: {buckets: [[bound, count]], sum, count}.
  function histogram(rows, total, name) {
    const counts = new Map();
    for (const { labels, value } of rows(`${name}_bucket`)) {
      const bound = labels.get('le') === '+Inf' ? Infinity : Number(labels.get('le'));
      counts.set(bound, (counts.get(bound) ?? 0) + value);
    }
    return { buckets: Array.from(counts).sort((a, b) => a[0] - b[0]), sum: total(`${name}_sum`), count: total(`${name}_count`) };
  }

  // As Prometheus' histogram_quantile estimates it, evenly inside a bucket: {value, above}; above: it lies beyond the
  // last bound, which is the value then. null: nothing was counted.
  function quantile({ buckets, count }, share) {
    if (!count || !buckets.length) return null;
    const rank = share * count;
    let below = 0, before = 0;
    for (const [bound, upto] of buckets) {
      if (upto >= rank) {
        if (bound === Infinity) return { value: below, above: true };
        return { value: upto === before ? bound : below + (bound - below) * (rank - before) / (upto - before), above: false };
      }
      below = bound;
      before = upto;
    }
    return { value: below, above: true };
  }

  const exact = (value) => Math.round(value).toLocaleString('en-US');

  function number(value) {
    if (!Number.isFinite(value)) return '-';
    if (Math.abs(value) >= 100 || Number.isInteger(value)) return exact(value);
    return value.toFixed(Math.abs(value) >= 10 ? 1 : 2);
  }

  function bytes(value) {
    let unit = 0;
    let size = value;
    for (; size >= 1024 && unit < 4; unit++) size /= 1024;
    return `${unit && size < 100 ? size.toFixed(1) : Math.round(size)} ${['B', 'KiB', 'MiB', 'GiB', 'TiB'][unit]}`;
  }

  function seconds(value) {
    if (value < 1) return `${number(Number((value * 1000).toPrecision(3)))} ms`;
    return value < 120 ? `${number(Number(value.toPrecision(3)))} s` : `${number(value / 60)} min`;
  }

  const percent = (share) => (share > 0 && share < 0.001 ? '< 0.1%' : `${(share * 100).toFixed(share > 0 && share < 0.1 ? 1 : 0)}%`);

  // Widths out of `whole` for parts of a bar; what is there at all can be seen.
  function widths(values, whole, least) {
    const sum = values.reduce((all, value) => all + value, 0);
    const parts = values.map((value) => (value > 0 ? Math.max(least, value / sum * whole) : 0));
    const over = parts.reduce((all, part) => all + part, 0) - whole;
    const largest = parts.indexOf(Math.max(...parts));
    if (largest >= 0 && sum > 0) parts[largest] -= over;
    return parts;
  }

  // A round number that is not below: the top of a scale.
  function ceiling(value) {
    if (!(value > 0)) return 10;
    const step = 10 ** Math.floor(Math.log10(value));
    return [1, 2, 5, 10].map((one) => one * step).find((one) => one >= value);
  }

  return { metrics, quantile, exact, number, bytes, seconds, percent, widths, ceiling };
})();
