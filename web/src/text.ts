// Display of text that comes from clusters: anybody may have chosen such a name.

/** Characters that are invisible or change how others look: controls, formats (also bidirectional), separators. */
const INVISIBLE = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/gu;

/** Longest text in a cell or label. */
const LONGEST = 200;

/** Escapes invisible characters. */
export function visible(text: string): string {
  return text.replace(INVISIBLE, (one) => `\\u{${(one.codePointAt(0) ?? 0).toString(16)}}`);
}

/** Escapes invisible characters, like `visible`, and truncates the text. */
export function short(text: string, longest = LONGEST): string {
  const whole = visible(text);
  return whole.length > longest ? `${whole.slice(0, longest - 1)}…` : whole;
}

/** Formats a rate for display. */
export function rate(perSecond: number): string {
  if (perSecond === 0) return "0";
  if (perSecond < 0.1) return perSecond.toFixed(2);
  return perSecond < 10 ? perSecond.toFixed(1) : Math.round(perSecond).toLocaleString("en");
}

/** Formats milliseconds for display. */
export function milliseconds(value: number | null): string {
  if (value === null) return "–";
  return value < 1000 ? `${value} ms` : `${(value / 1000).toFixed(1)} s`;
}
