import { expect, test } from 'vitest';
import { EventParser } from './sse';

const text = ': hello\r\nevent: metrics\r\nid: 7\r\ndata: {"a":\r\ndata: 1}\r\n\r\ndata:x\n\nevent: role\n\n';
const events = [
  { event: 'metrics', data: '{"a":\n1}', id: '7' },
  { event: 'message', data: 'x', id: '7' },
];

test('events come out the same however the stream is cut', () => {
  for (let cut = 0; cut <= text.length; cut += 1) {
    const parser = new EventParser();
    expect([...parser.push(text.slice(0, cut)), ...parser.push(text.slice(cut))]).toEqual(events);
  }
  const parser = new EventParser();
  expect([...text].flatMap((char) => parser.push(char))).toEqual(events);
});
