/** How long to wait before the next try: doubling, with full jitter so that clients spread. */
export interface BackoffLimits {
  readonly firstMs: number;
  readonly maxMs: number;
}

export const SOCKET_BACKOFF: BackoffLimits = { firstMs: 500, maxMs: 30_000 };

export function backoffDelay(failures: number, limits: BackoffLimits, draw: () => number = Math.random): number {
  const top = Math.min(limits.maxMs, limits.firstMs * 2 ** Math.min(failures, 20));
  return Math.round(top / 2 + (draw() * top) / 2);
}
