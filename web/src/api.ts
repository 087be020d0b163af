// Requests to the dashboard's server. Each carries the token from the address that `ambit dashboard` printed.

const KEPT = "ambit-token";

/** Moves the token from the address, where it would be visible, copied and kept in the history, to session storage. */
export function takeToken(): void {
  const found = /^#token=([0-9a-f]+)$/.exec(location.hash);
  if (!found?.[1]) return;
  sessionStorage.setItem(KEPT, found[1]);
  history.replaceState(null, "", `${location.pathname}#/`);
}

/** Error of a response with an unsuccessful status. */
export class Failure extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

type Parameters = Record<string, string | number | boolean>;

async function ask<T>(path: string, init: RequestInit): Promise<T> {
  const headers = { "x-ambit-token": sessionStorage.getItem(KEPT) ?? "" };
  const response = await fetch(path, { ...init, headers, cache: "no-store", credentials: "omit", redirect: "error" });
  if (response.ok) return (await response.json()) as T;
  const text = await response.text();
  let message = text.trim();
  try {
    message = (JSON.parse(text) as { error: string }).error;
  } catch {
    // The body is not a JSON error of the server.
  }
  throw new Failure(response.status, message);
}

function withParameters(path: string, parameters: Parameters): string {
  const query = new URLSearchParams(Object.entries(parameters).map(([name, value]) => [name, String(value)]));
  return query.size > 0 ? `/api/${path}?${query}` : `/api/${path}`;
}

export function get<T>(path: string, parameters: Parameters = {}, signal?: AbortSignal): Promise<T> {
  return ask<T>(withParameters(path, parameters), signal ? { signal } : {});
}

export function post<T>(path: string, parameters: Parameters, body: string): Promise<T> {
  return ask<T>(withParameters(path, parameters), { method: "POST", body });
}
