// The user docs as HTML: one page for each Markdown page that the index lists for users, and the sections that the search knows.
import { Marked, type Token, type Tokens } from 'marked';

/** Sections of the index whose pages are for maintainers. */
const left = ['Change it'];

/** Reads a file of the docs, by its path from their folder. */
export type Read = (path: string) => string;

/** A page by its path from the docs' folder, without `.md`. */
export type Page = { path: string; title: string; html: string };

/** What the search finds: a section of a page. */
export type Section = { id: number; href: string; page: string; title: string; text: string };

export type Guide = {
  pages: Page[];
  sections: Section[];
  /** Other files that pages show or link to, by their path from the docs' folder. */
  files: string[];
};

type Group = { title: string; entries: { path: string; name: string }[] };

export function guideOf(read: Read): Guide {
  const index = indexOf(read('README.md'));
  const groups = groupsOf(index);
  const served = ['README.md', ...groups.flatMap(({ entries }) => entries.map(({ path }) => path))];
  const writer = new Writer(groups, new Set(served));
  for (const path of served.filter((path) => path.endsWith('.md'))) {
    writer.add(path, path === 'README.md' ? index : read(path));
  }
  return { pages: writer.pages, sections: writer.sections, files: [...writer.files].sort() };
}

/** The index without the sections for maintainers. */
function indexOf(text: string): string {
  const [start = '', ...sections] = text.split(/^(?=## )/m);
  return start + sections.filter((section) => !left.some((title) => section.startsWith(`## ${title}\n`))).join('');
}

function groupsOf(index: string): Group[] {
  return index
    .split(/^## /m)
    .slice(1)
    .map((section) => ({
      title: section.slice(0, section.indexOf('\n')),
      entries: [...section.matchAll(/^\| \[([^\]]+)\]\(([^)]+)\)/gm)].map(([, name = '', path = '']) => ({ path, name })),
    }));
}

/** The path of the file that a link of a page means, from the docs' folder; it begins with `..` outside of it. */
export function resolved(page: string, target: string): string {
  const parts = page.split('/').slice(0, -1);
  for (const part of target.split('/')) {
    if (part === '..' && parts.length > 0 && parts.at(-1) !== '..') parts.pop();
    else if (part !== '.') parts.push(part);
  }
  return parts.join('/');
}

/** The address of a page from the guide's. */
export function addressOf(path: string): string {
  return path.replace(/(^|\/)README\.md$/, '$1index.html').replace(/\.md$/, '.html');
}

/** The name under which a heading is linked. `cargo xtask tidy` and the forges make the same. */
export function slugOf(title: string): string {
  return title
    .toLowerCase()
    .replace(/[^\p{L}\p{N}\-_ ]/gu, '')
    .replaceAll(' ', '-');
}

const escapes: Record<string, string> = { '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;' };

function escaped(text: string): string {
  return text.replace(/[&<>"]/g, (c) => escapes[c] ?? c);
}

/** The words of Markdown text, for the search. */
function wordsOf(tokens: Token[]): string {
  const raw = tokens.map((token) => token.raw).join('\n');
  return raw
    .replace(/<!--.*?-->/gs, ' ')
    .replace(/\]\([^)]*\)/g, ' ')
    .replace(/^```.*$/gm, ' ')
    .replace(/[`*|[\]#>]|-{3,}/g, ' ')
    .replace(/\s+/g, ' ')
    .trim();
}

class Writer {
  readonly pages: Page[] = [];
  readonly sections: Section[] = [];
  readonly files = new Set<string>();
  readonly #groups: Group[];
  readonly #served: Set<string>;

  constructor(groups: Group[], served: Set<string>) {
    this.#groups = groups;
    this.#served = served;
  }

  add(path: string, text: string): void {
    const marked = this.#markedFor(path);
    const tokens = marked.lexer(text);
    const headings = tokens.filter((token): token is Tokens.Heading => token.type === 'heading');
    const title = plain(headings[0]?.text ?? path);
    const html = this.#document(path, title, marked.parser(tokens), headings);
    this.pages.push({ path: addressOf(path), title, html });
    this.#addSections(path, title, tokens);
  }

  #addSections(path: string, page: string, tokens: Token[]): void {
    let own: Token[] = [];
    let heading = { title: page, slug: '' };
    const end = () => {
      const text = wordsOf(own);
      const href = addressOf(path) + (heading.slug === '' ? '' : `#${heading.slug}`);
      if (text !== '') this.sections.push({ id: this.sections.length, href, page, title: heading.title, text });
      own = [];
    };
    for (const token of tokens) {
      if (token.type !== 'heading') own.push(token);
      else if (token['depth'] > 1) {
        end();
        heading = { title: plain(token['text']), slug: slugOf(token['text']) };
      }
    }
    end();
  }

  #markedFor(path: string): Marked {
    const href = (target: string) => this.#hrefOf(path, target);
    return new Marked({
      gfm: true,
      renderer: {
        heading({ tokens, depth, text }) {
          return `<h${depth} id="${slugOf(text)}">${this.parser.parseInline(tokens)}</h${depth}>\n`;
        },
        link({ href: target, tokens }) {
          const to = href(target);
          const inner = this.parser.parseInline(tokens);
          return to === null ? inner : `<a href="${escaped(to)}">${inner}</a>`;
        },
        image({ href: target, text }) {
          return `<img src="${escaped(href(target) ?? target)}" alt="${escaped(text)}" loading="lazy">`;
        },
        code({ text, lang }) {
          return `<pre tabindex="0"><code>${escaped(shown(text, lang))}</code></pre>\n`;
        },
        html({ text }) {
          // Markers for the tests of the docs.
          return /^\s*<!--/.test(text) ? '' : escaped(text);
        },
        table(token) {
          const row = (cells: Tokens.TableCell[], tag: 'th' | 'td') =>
            `<tr>${cells.map((cell) => `<${tag}>${this.parser.parseInline(cell.tokens)}</${tag}>`).join('')}</tr>\n`;
          const body = token.rows.map((cells) => row(cells, 'td')).join('');
          return `<div class="scroll" tabindex="0"><table><thead>${row(token.header, 'th')}</thead><tbody>${body}</tbody></table></div>\n`;
        },
      },
    });
  }

  /** The address of a link's target, seen from a page; null if the server does not have it. */
  #hrefOf(page: string, target: string): string | null {
    if (/^[a-z]+:/.test(target) || target.startsWith('#')) return target;
    // Pages name paths of the API as they are on a server of its own.
    if (target.startsWith('/')) return `${rootOf(page)}../..${target}`;
    const [file = '', heading] = target.split('#');
    const path = resolved(page, file);
    const isFile = !path.endsWith('.md') && !path.startsWith('..');
    if (isFile) this.files.add(path);
    if (!isFile && !this.#served.has(path)) return null;
    return rootOf(page) + addressOf(path) + (heading === undefined ? '' : `#${heading}`);
  }

  #document(path: string, title: string, article: string, headings: Tokens.Heading[]): string {
    const root = rootOf(path);
    const within = headings
      .filter(({ depth }) => depth === 2)
      .map(({ text }) => `<li><a href="#${slugOf(text)}">${escaped(plain(text))}</a></li>`)
      .join('');
    const entry = (entry: Group['entries'][number]) => {
      const isHere = entry.path === path;
      const link = `<a href="${root}${addressOf(entry.path)}"${isHere ? ' aria-current="page"' : ''}>${escaped(plain(entry.name))}</a>`;
      return `<li>${link}${isHere && within !== '' ? `<ul class="within">${within}</ul>` : ''}</li>`;
    };
    const groups = this.#groups.map(
      ({ title, entries }) => `<h2>${escaped(title)}</h2>\n<ul>${entries.map(entry).join('\n')}</ul>`,
    );
    return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>${escaped(title)} · Reprise guide</title>
<link rel="icon" href="${root}../favicon.svg" type="image/svg+xml">
<link rel="stylesheet" href="${root}guide.css">
<script type="module" src="${root}search.js"></script>
</head>
<body>
<header>
<a class="brand" href="${root}index.html">Reprise guide</a>
<search><input type="search" id="search" placeholder="Search the guide" aria-label="Search the guide" aria-controls="found"></search>
<nav aria-label="Server"><a class="to-pages" href="#pages">Pages</a><a href="${root}../../console/">Console</a><a href="${root}../">API</a></nav>
</header>
<div class="columns">
<main>
<section id="found" aria-label="Search results" aria-live="polite" hidden></section>
<article>
${article}</article>
</main>
<nav id="pages" aria-label="Pages">
${groups.join('\n')}
</nav>
</div>
</body>
</html>
`;
  }
}

function rootOf(path: string): string {
  return '../'.repeat(path.split('/').length - 1);
}

/** A heading without marks. */
function plain(text: string): string {
  return text.replace(/[`*]/g, '');
}

/** Example code without the lines that only its test needs, which rustdoc hides, too. */
function shown(text: string, lang: string | undefined): string {
  if (!/^rust/.test(lang ?? '')) return text;
  const lines = text.split('\n').filter((line) => !/^\s*#( |$)/.test(line));
  return lines.join('\n').trimEnd();
}
