/** Grey bars where text will be; they appear after 150 ms, so that a fast answer shows none. */
export function Skeleton({ rows = 3, label = "Loading" }: { rows?: number; label?: string }) {
  return (
    <div className="ui-skeleton" role="status" aria-label={label}>
      {Array.from({ length: rows }, (_, row) => (
        <i key={row} style={{ width: `${[92, 64, 78, 55, 84][row % 5] ?? 70}%` }} />
      ))}
    </div>
  );
}
