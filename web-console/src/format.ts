// Numbers, sizes and times as people read them. Ids and positions come as decimal strings wider than a double.

const grouped = new Intl.NumberFormat('en-US');
const compact = new Intl.NumberFormat('en-US', { notation: 'compact', maximumSignificantDigits: 3 });

/** Digits in groups of three: `1,234,567`. Takes strings of any width. */
export function formatCount(value: string | number | bigint): string {
  if (typeof value !== 'string') return grouped.format(value);
  return /^-?\d+$/.test(value) ? grouped.format(BigInt(value)) : value;
}

export function formatRate(perSecond: number): string {
  if (perSecond < 10) return (Math.round(perSecond * 10) / 10).toString();
  return perSecond < 100_000 ? grouped.format(Math.round(perSecond)) : compact.format(perSecond);
}

const byteUnits = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];

export function formatBytes(value: string | number): string {
  let amount = Number(value);
  let unit = 0;
  while (Math.abs(amount) >= 1024 && unit < byteUnits.length - 1) {
    amount /= 1024;
    unit += 1;
  }
  const digits = unit === 0 || amount >= 100 ? 0 : 1;
  return `${amount.toFixed(digits)} ${byteUnits[unit]}`;
}

/** A duration given in microseconds: `84 µs`, `1.2 ms`, `3.4 s`. */
export function formatMicros(micros: number): string {
  if (micros < 1000) return `${Math.round(micros)} µs`;
  if (micros < 1_000_000) return `${trimmed(micros / 1000)} ms`;
  return `${trimmed(micros / 1_000_000)} s`;
}

export function formatUptime(seconds: number): string {
  const days = Math.floor(seconds / 86_400);
  const hours = Math.floor((seconds % 86_400) / 3600);
  const minutes = Math.floor((seconds % 3600) / 60);
  if (days > 0) return `${days} d ${hours} h`;
  if (hours > 0) return `${hours} h ${minutes} min`;
  if (minutes > 0) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  return `${Math.floor(seconds)} s`;
}

/** Local date and time to the second; what is no date comes back as it is. */
export function formatTime(iso: string): string {
  const date = new Date(iso);
  if (Number.isNaN(date.getTime())) return iso;
  const pad = (part: number) => part.toString().padStart(2, '0');
  const day = `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
  return `${day} ${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
}

/** Records between two LSNs; never negative, because the two are read at different moments. */
export function lsnDistance(ahead: string, behind: string): number {
  const distance = BigInt(ahead) - BigInt(behind);
  return distance > 0n ? Number(distance) : 0;
}

export function plural(count: number, one: string, many = `${one}s`): string {
  return `${formatCount(count)} ${count === 1 ? one : many}`;
}

function trimmed(value: number): string {
  return value >= 100 ? value.toFixed(0) : value.toFixed(1).replace(/\.0$/, '');
}
