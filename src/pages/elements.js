// Elements of a page, numbers as text, the tooltip, and tables that sort. Text of the data becomes text nodes only.

const SERIES_COLOURS = 16;
const colourOf = index => `var(--series-${index % SERIES_COLOURS})`;

function build(node, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith('on'))
      node.addEventListener(name.slice(2), value);
    else if (name === 'style')
      for (const [key, text] of Object.entries(value)) node.style.setProperty(key, text);
    else
      node.setAttribute(name, value === true ? '' : value);
  }
  for (const child of children.flat(Infinity))
    if (child !== null && child !== undefined && child !== false) node.append(child);
  return node;
}

const element = (tag, properties, ...children) => build(document.createElement(tag), properties, children);
const drawing = (tag, properties, ...children) =>
    build(document.createElementNS('http://www.w3.org/2000/svg', tag), properties, children);

// --- numbers as text ---

const isNumber = value => typeof value === 'number' && Number.isFinite(value);

function numberText(value, digits = 4) {
  if (!isNumber(value)) return '–';
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e9)) return value.toExponential(Math.max(0, digits - 2));
  const decimals = size === 0 ? 0 : Math.max(0, digits - 1 - Math.floor(Math.log10(size)));
  const text = value.toLocaleString('en', {maximumFractionDigits: Math.min(decimals, 12)});
  return text.replaceAll(',', '\u2009');
}

const withUnit = (value, unit, digits) => isNumber(value) ? `${numberText(value, digits)}\u00a0${unit}` : '–';
const percentText = share => withUnit(Math.round(1e4 * share) / 100, '%', 3);
const mebibytes = count => count >= 1024 ? withUnit(count / 1024, 'GiB', 4) : withUnit(count, 'MiB', 4);
const gigabytes = bytes => withUnit(bytes / 1e9, 'GB', 3);

function secondsText(seconds) {
  if (!isNumber(seconds)) return '–';
  const size = Math.abs(seconds);
  if (size >= 7200) return withUnit(seconds / 3600, 'h', 3);
  if (size >= 120) return withUnit(seconds / 60, 'min', 3);
  if (size >= 1 || size === 0) return withUnit(seconds, 's', 3);
  return size >= 1e-3 ? withUnit(1e3 * seconds, 'ms', 3) : withUnit(1e6 * seconds, 'µs', 3);
}

const changeText = (after, before) => {
  if (!isNumber(after) || !isNumber(before) || before === 0) return '–';
  const change = 100 * (after / before - 1);
  return `${change >= 0 ? '+' : '−'}${numberText(Math.abs(change), 3)}\u00a0%`;
};

// --- the tooltip: one for the page; screen readers hear what it says ---

const tooltip = {
  box: null,
  show(x, y, ...content) {
    this.box ??= document.body.appendChild(element('div', {class: 'tooltip', role: 'status', 'aria-live': 'polite'}));
    this.box.replaceChildren(...content.flat(Infinity).filter(Boolean));
    this.box.hidden = false;
    const {width, height} = this.box.getBoundingClientRect();
    const left = x + 14 + width > window.innerWidth - 4 ? x - 14 - width : x + 14;
    const top = y + 14 + height > window.innerHeight - 4 ? y - 14 - height : y + 14;
    this.box.style.left = `${Math.min(Math.max(4, left), Math.max(4, window.innerWidth - width - 4))}px`;
    this.box.style.top = `${Math.max(4, top)}px`;
  },
  hide() {
    if (this.box) this.box.hidden = true;
  },
};

const line = (...parts) => element('div', {}, ...parts);
const swatch = colour => element('i', {class: 'swatch', style: {background: colour}});

// --- parts of a page ---

function onKeys(node, actions) {
  node.addEventListener('keydown', event => {
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  });
}

// Appends the parts that there are to the page.
const fillPage = (...parts) => build(document.getElementById('page'), {}, parts);

// A figure with a title and a note above a drawing.
const figure = (properties, title, note, drawn) => element('figure', properties,
    element('figcaption', {}, element('b', {}, title), element('span', {}, note)), drawn);

const card = (value, name) => element('div', {class: 'card'}, element('b', {}, value), element('span', {}, name));
const paragraph = (...texts) => element('p', {}, ...texts);
const section = (title, ...children) => element('section', {}, element('h2', {}, title), ...children);

const button = (text, onclick, properties) => element('button', {type: 'button', onclick, ...properties}, text);
const checkbox = (set, properties) =>
    element('input', {type: 'checkbox', onchange: event => set(event.target.checked), ...properties});

function legend(entries) {
  return element('ul', {class: 'legend'}, entries.map(({name, colour}) => element('li', {}, swatch(colour), name)));
}

// A section with a table, and nothing without rows.
const tableSection = (title, note, headings, rows, {words = 1, more = null} = {}) =>
    rows.length ? section(title, note ? paragraph(note) : null,
                      element('div', {class: 'rows'}, plainTable(headings, rows, words)), more) :
                  null;

// A column with a key of the rows: its value as text. `words` are left-aligned and sort as text.
const column = (name, key, text, more) => ({name, value: row => row[key], text: row => text(row[key]), ...more});
const wordColumn = (name, key, width) => column(name, key, String, {words: true, width});

// A table whose headings sort it. columns: {name, value(row), text(row), words, width}, at least `width` wide.
// onselect(row), selected(row) and order are optional.
function sortableTable({columns, rows, onselect, selected, order = {column: 0, down: false}, caption}) {
  const body = element('tbody');
  const headings =
      columns.map((column, index) => element('th', {scope: 'col', class: column.words ? 'words' : 'number'},
                      button(column.name, () => sortBy(index))));
  const table = element('table', {class: 'sortable'}, element('caption', {class: 'hidden'}, caption),
      element('thead', {}, element('tr', {}, headings)), body);

  function compare(a, b) {
    const {value, words} = columns[order.column];
    const [left, right] = [value(a), value(b)];
    if (words) return String(left).localeCompare(String(right));
    if (isNumber(left) !== isNumber(right)) return isNumber(left) ? -1 : 1;  // what is unknown comes last
    return left - right;
  }

  function sortBy(index) {
    order = {column: index, down: order.column === index && !order.down};
    fill();
  }

  function fill() {
    headings.forEach((heading, index) => heading.setAttribute(
        'aria-sort', index !== order.column ? 'none' : order.down ? 'descending' : 'ascending'));
    const sorted = [...rows].sort((a, b) => order.down ? compare(b, a) : compare(a, b));
    body.replaceChildren(...sorted.map(row => {
      const cells = columns.map(({words, width, text}) =>
          element('td', {class: words ? 'words' : 'number', style: width ? {'min-width': width} : null}, text(row)));
      const isSelected = selected?.(row), choose = onselect && (() => onselect(row));
      const node = element('tr', {
        class: isSelected && 'selected', 'aria-current': isSelected && 'true', tabindex: choose && '0', onclick: choose
      }, cells);
      if (choose) onKeys(node, {Enter: choose, ' ': choose});
      return node;
    }));
  }

  fill();
  return {
    table,
    update(newRows) {
      rows = newRows;
      fill();
    }
  };
}

const scrolling = table =>
    element('div', {class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'table'}, table);

// Rows of cells under headings; a cell is text or an element. The first `words` columns are left-aligned.
function plainTable(headings, rows, words = 1) {
  const rowOf = (tag, cells) => element('tr', {},
      cells.map((content, index) => element(tag, {class: index < words ? 'words' : 'number'}, content)));
  return scrolling(element('table', {}, element('thead', {}, rowOf('th', headings)),
      element('tbody', {}, rows.map(row => rowOf('td', row)))));
}
