// The search of the guide: the sections of all pages, fetched and indexed when the reader first types.
import MiniSearch from 'minisearch';
import type { Section } from './pages';

const shownMax = 12;
const around = 80;

const root = new URL(/* @vite-ignore */ '.', import.meta.url);
const input = document.querySelector<HTMLInputElement>('#search');
const found = document.querySelector<HTMLElement>('#found');
const article = document.querySelector<HTMLElement>('article');
let sections: Promise<(words: string) => Hit[]> | undefined;

type Hit = { section: Section; terms: string[] };

async function load(): Promise<(words: string) => Hit[]> {
  const answer = await fetch(new URL('sections.json', root));
  if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
  const all: Section[] = await answer.json();
  const index = new MiniSearch<Section>({ fields: ['title', 'page', 'text'] });
  index.addAll(all);
  return (words) => {
    const options = { boost: { title: 4, page: 2 }, prefix: true, fuzzy: (term: string) => (term.length > 5 ? 0.2 : false) };
    const strict = index.search(words, { ...options, combineWith: 'AND' });
    const hits = strict.length > 0 ? strict : index.search(words, options);
    return hits.slice(0, shownMax).flatMap(({ id, terms }) => {
      const section = all[Number(id)];
      return section === undefined ? [] : [{ section, terms }];
    });
  };
}

async function show(words: string): Promise<void> {
  if (found === null || article === null) return;
  found.hidden = words === '';
  article.hidden = words !== '';
  if (words === '') return;
  try {
    sections ??= load();
    const search = await sections;
    // A later key may have been pressed meanwhile.
    if (input?.value.trim() === words) found.replaceChildren(...results(words, search(words)));
  } catch (error) {
    sections = undefined;
    found.replaceChildren(text('p', `The search failed: ${error instanceof Error ? error.message : error}`));
  }
}

function results(words: string, hits: Hit[]): HTMLElement[] {
  if (hits.length === 0) return [text('p', `No page has “${words}”.`)];
  const list = document.createElement('ol');
  for (const { section, terms } of hits) {
    const item = document.createElement('li');
    const link = text('a', section.title);
    link.href = new URL(section.href, root).href;
    item.append(link, text('span', section.title === section.page ? '' : section.page), excerpt(section.text, terms));
    list.append(item);
  }
  return [list];
}

/** The text around the first word that matches. */
function excerpt(whole: string, terms: string[]): HTMLElement {
  const lower = whole.toLowerCase();
  const places = terms.map((term) => ({ term, at: lower.indexOf(term) })).filter(({ at }) => at >= 0);
  const first = places.sort((a, b) => a.at - b.at)[0] ?? { term: '', at: 0 };
  const from = Math.max(0, first.at - around);
  const to = Math.min(whole.length, first.at + first.term.length + 2 * around);
  const line = document.createElement('p');
  line.append(`${from > 0 ? '…' : ''}${whole.slice(from, first.at)}`);
  line.append(text('mark', whole.slice(first.at, first.at + first.term.length)));
  line.append(`${whole.slice(first.at + first.term.length, to)}${to < whole.length ? '…' : ''}`);
  return line;
}

function text<K extends keyof HTMLElementTagNameMap>(name: K, content: string): HTMLElementTagNameMap[K] {
  const element = document.createElement(name);
  element.textContent = content;
  return element;
}

input?.addEventListener('input', () => void show(input.value.trim()));
found?.addEventListener('click', (event) => {
  // A result on this very page only moves to its heading.
  if (event.target instanceof HTMLAnchorElement && input !== null) {
    input.value = '';
    void show('');
  }
});
document.addEventListener('keydown', (event) => {
  const isTyping = event.target instanceof HTMLInputElement;
  if (event.key === '/' && !isTyping && input !== null) {
    event.preventDefault();
    input.focus();
  }
  if (event.key === 'Escape' && input !== null) {
    input.value = '';
    void show('');
  }
});
