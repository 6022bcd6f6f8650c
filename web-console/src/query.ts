// The part of an address behind its question mark.

export type QueryValues<K extends PropertyKey> = { [key in K]?: string | string[] | null };

/** Each value as text, each item of a list as one; null and empty ones are left out. Empty where nothing is left. */
export function queryOf(values: object): string {
  const params = new URLSearchParams();
  for (const [key, value] of Object.entries<string | string[] | null | undefined>({ ...values })) {
    for (const text of Array.isArray(value) ? value : [value ?? '']) {
      if (text !== '') params.append(key, text);
    }
  }
  const text = params.toString();
  return text === '' ? '' : `?${text}`;
}
