/** RFC 3339 with up to microseconds. */
export function isTimestamp(text: string): boolean {
  const shape = /^\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2}(?:\.\d{1,6})?(?:[Zz]|[+-]\d{2}:\d{2})$/;
  return shape.test(text) && !Number.isNaN(Date.parse(text.replace(' ', 'T')));
}
