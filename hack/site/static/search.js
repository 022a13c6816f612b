// The search of the site. The index is loaded when the input gets the focus. A part of a page
// matches if it contains all words of the query.
'use strict';
const root = new URL('.', document.currentScript.src);
const form = document.querySelector('form');
const input = form.elements.q;
const results = document.getElementById('results');
const article = document.querySelector('article');
const maxResults = 30;
let loading;

function load() {
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement('script');
    script.src = new URL('search-index.js', root);
    script.onload = resolve;
    script.onerror = () => { loading = undefined; reject(); }; // the next call tries again
    document.head.append(script);
  });
  return loading;
}

function count(text, word) {
  return text.toLowerCase().split(word).length - 1;
}

// score returns 0 if an entry does not match. A match in a heading scores higher than a match in the text.
function score(entry, words) {
  let sum = 0;
  for (const word of words) {
    const points = 20 * count(entry.page, word) + 20 * count(entry.heading, word) + Math.min(5, count(entry.text, word));
    if (points === 0) return 0;
    sum += points;
  }
  return sum;
}

// mark appends text to element, with the words in mark elements, and returns element.
function mark(element, text, words) {
  const pattern = new RegExp('(' + words.map(word => word.replace(/[\\^$.*+?()[\]{}|]/g, '\\$&')).join('|') + ')', 'iu');
  for (const [i, part] of text.split(pattern).entries()) {
    const node = i % 2 === 1 ? document.createElement('mark') : document.createElement('span');
    node.textContent = part;
    element.append(node);
  }
  return element;
}

// excerpt returns about 220 characters of the text, which start before the first match.
function excerpt(text, words) {
  const first = Math.min(...words.map(word => text.toLowerCase().indexOf(word)).filter(at => at >= 0));
  const start = first < 60 || first === Infinity ? 0 : text.lastIndexOf(' ', first - 60) + 1;
  const end = text.length <= start + 220 ? text.length : text.lastIndexOf(' ', start + 220);
  return (start > 0 ? '… ' : '') + text.slice(start, end) + (end < text.length ? ' …' : '');
}

function item(entry, words) {
  const link = document.createElement('a');
  link.href = new URL(entry.url, root);
  link.textContent = entry.heading === entry.page ? entry.page : entry.page + ' › ' + entry.heading;
  const result = document.createElement('li');
  result.append(link, mark(document.createElement('p'), excerpt(entry.text, words), words));
  return result;
}

// show replaces the results with a heading and other elements.
function show(heading, ...elements) {
  const h1 = document.createElement('h1');
  h1.textContent = heading;
  results.replaceChildren(h1, ...elements);
}

async function search() {
  const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
  results.hidden = words.length === 0;
  article.hidden = !results.hidden;
  if (results.hidden) return;
  try {
    await load();
  } catch {
    show('The search index cannot be loaded');
    return;
  }
  const found = searchIndex.map(entry => ({ entry, score: score(entry, words) })).filter(f => f.score > 0)
    .sort((a, b) => b.score - a.score);
  const list = document.createElement('ol');
  list.append(...found.slice(0, maxResults).map(f => item(f.entry, words)));
  show(found.length === 0 ? 'No results' : found.length === 1 ? '1 result' : found.length + ' results', list);
}

input.addEventListener('focus', () => load().catch(() => {})); // search reports the error
input.addEventListener('input', search);
form.addEventListener('submit', event => { event.preventDefault(); search(); });
results.addEventListener('click', event => {
  if (event.target.closest('a')) { input.value = ''; search(); } // the link can lead to this page
});
document.addEventListener('keydown', event => {
  if (event.key === '/' && !/INPUT|TEXTAREA/.test(document.activeElement.tagName)) { event.preventDefault(); input.focus(); }
  if (event.key === 'Escape') { input.value = ''; search(); }
});
input.value = new URLSearchParams(location.search).get('q') ?? '';
search();
