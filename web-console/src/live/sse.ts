// Server-sent events over fetch: EventSource can't send an Authorization header.

export type ServerEvent = { event: string; data: string; id: string | null };

/** Cuts a stream of text into events. Lines may end in LF, CRLF or CR, and chunks may end anywhere. */
export class EventParser {
  #rest = '';
  #event = '';
  #data: string[] = [];
  #id: string | null = null;

  push(chunk: string): ServerEvent[] {
    const text = this.#rest + chunk;
    // A CR at the very end may be half of a CRLF: it waits for the next chunk.
    const usable = text.endsWith('\r') ? text.length - 1 : text.length;
    const lines = text.slice(0, usable).split(/\r\n|\n|\r/);
    this.#rest = (lines.pop() ?? '') + text.slice(usable);
    return lines.flatMap((line) => this.#line(line));
  }

  #line(line: string): ServerEvent[] {
    if (line === '') return this.#dispatch();
    const colon = line.indexOf(':');
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? '' : line.slice(colon + 1).replace(/^ /, '');
    if (field === 'event') this.#event = value;
    if (field === 'data') this.#data.push(value);
    if (field === 'id') this.#id = value;
    return [];
  }

  #dispatch(): ServerEvent[] {
    const data = this.#data;
    const event = this.#event === '' ? 'message' : this.#event;
    this.#data = [];
    this.#event = '';
    return data.length === 0 ? [] : [{ event, data: data.join('\n'), id: this.#id }];
  }
}

export async function readEvents(
  body: ReadableStream<Uint8Array<ArrayBuffer>>,
  onEvent: (event: ServerEvent) => void,
): Promise<void> {
  const parser = new EventParser();
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    for (const event of parser.push(value)) onEvent(event);
  }
}
