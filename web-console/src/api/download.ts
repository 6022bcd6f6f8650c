// Rows as a file: page after page in the server's own form, until there are no more.
import type { ListRowsData } from '../generated/types.gen';
import { readText, refusal, send } from './client';
import type { RangeWanted } from './queries';

export const forms = {
  csv: { name: 'CSV', mediaType: 'text/csv' },
  ndjson: { name: 'NDJSON', mediaType: 'application/x-ndjson' },
};

export type Form = keyof typeof forms;

/** A page that the server reads in one go. */
const rowsPerRequest = '1000';
/** What a file may take in the browser's memory, in characters. */
export const downloadMax = 64 * 2 ** 20;

export type RowsFile = { text: string; complete: boolean };

/** All rows that are wanted, as many as `max` characters hold; `complete` where nothing was left out. */
export async function readRows(
  { table, ...wanted }: RangeWanted & { reverse: string | null },
  form: Form,
  signal: AbortSignal,
  max = downloadMax,
): Promise<RowsFile> {
  const headers = { Accept: forms[form].mediaType };
  const pages: string[] = [];
  let length = 0;
  let cursor: string | null = null;
  do {
    const query = { ...wanted, limit: rowsPerRequest, cursor };
    const response: Response = await send<ListRowsData>(
      { url: '/v1/tables/{table}/rows', path: { table }, query },
      { headers, signal },
    );
    if (!response.ok) throw await refusal(response);
    const page = await readText(response, signal);
    // Each page of CSV begins with the line of names.
    pages.push(form === 'csv' && pages.length > 0 ? page.slice(page.indexOf('\r\n') + 2) : page);
    length += pages.at(-1)?.length ?? 0;
    cursor = response.headers.get('Reprise-Next-Cursor');
  } while (cursor !== null && length < max);
  return { text: pages.join(''), complete: cursor === null };
}

/** Hands a file to the browser's downloads. */
export function save(name: string, text: string, mediaType: string): void {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([text], { type: mediaType }));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}
