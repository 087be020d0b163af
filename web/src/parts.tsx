// Components that several pages share.

import type { ComponentChildren, VNode } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Failure } from "./api";
import { short, visible } from "./text";

/** Text that comes from the cluster, escaped. */
export function Text({ children, long = false }: { children: string; long?: boolean }): VNode {
  return <bdi title={visible(children)}>{long ? visible(children) : short(children)}</bdi>;
}

/** Returns the address of a page. */
export const href = (...path: string[]): string => `#/${path.map(encodeURIComponent).join("/")}`;

export function WorkloadLink({ namespace, name }: { namespace: string; name: string }): VNode {
  return (
    <a href={href("workload", namespace, name)}>
      <Text>{`${namespace}/${name}`}</Text>
    </a>
  );
}

export type Tone = "good" | "bad" | "warn" | "dim";

/** A coloured word; it carries the meaning without the colour, too. */
export function Badge({ tone, children }: { tone: Tone; children: ComponentChildren }): VNode {
  return <span class={`badge ${tone}`}>{children}</span>;
}

export interface Column {
  name: string;
  number?: boolean;
}

export interface Row {
  key: string;
  cells: ComponentChildren[];
}

/** Maximum number of rows that a table first shows. */
const PAGE = 100;

/** Table that shows its first rows, and more on request. */
export function Table({ label, columns, rows, empty }: { label: string; columns: Column[]; rows: Row[]; empty: string }): VNode {
  const [shown, setShown] = useState(PAGE);
  if (rows.length === 0) return <p class="dim">{empty}</p>;
  return (
    <div class="table" role="region" aria-label={label} tabIndex={0}>
      <table>
        <thead>
          <tr>
            {columns.map(({ name, number }) => (
              <th scope="col" class={number ? "number" : ""} key={name}>
                {name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.slice(0, shown).map(({ key, cells }) => (
            <tr key={key}>
              {cells.map((cell, index) => (
                <td class={columns[index]?.number ? "number" : ""} key={columns[index]?.name}>
                  {cell}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
      {rows.length > shown && (
        <button type="button" onClick={() => setShown(shown + PAGE)}>
          Show more ({rows.length - shown} left)
        </button>
      )}
    </div>
  );
}

export interface Answer<T> {
  value: T | null;
  error: string | null;
}

/** Fetches when the page opens, when `key` changes, and every `everyMs` milliseconds unless that is 0. */
export function useAnswer<T>(key: string, ask: (signal: AbortSignal) => Promise<T>, everyMs = 0): Answer<T> {
  const [answer, setAnswer] = useState<Answer<T>>({ value: null, error: null });
  useEffect(() => {
    const abort = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const look = async (): Promise<void> => {
      try {
        const value = await ask(abort.signal);
        if (!abort.signal.aborted) setAnswer({ value, error: null });
      } catch (error) {
        if (abort.signal.aborted) return;
        const message = error instanceof Failure ? error.message : "the dashboard does not answer";
        setAnswer((before) => ({ value: before.value, error: message }));
      }
      if (everyMs > 0 && !abort.signal.aborted) timer = setTimeout(() => void look(), everyMs);
    };
    setAnswer({ value: null, error: null });
    void look();
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [key]);
  return answer;
}

/** Shows that a response is pending, or why the request failed. */
export function Waiting({ answer, what }: { answer: Answer<unknown>; what: string }): VNode | null {
  if (answer.error !== null) {
    return (
      <p class="trouble" role="alert">
        {what} cannot be read: <Text long>{answer.error}</Text>
      </p>
    );
  }
  return answer.value === null ? <p class="dim">Reading {what.toLowerCase()} …</p> : null;
}
