/** Small pictures on the demo cards. */
const frame = { viewBox: "0 0 216 76", preserveAspectRatio: "xMidYMid meet", "aria-hidden": true } as const;

export const FixArt = () => (
  <svg {...frame} className="mono">
    <rect x="18" y="12" width="180" height="18" rx="3" fill="var(--del-bg)" />
    <rect x="18" y="30" width="180" height="18" rx="3" fill="var(--add-bg)" />
    <text x="26" y="24.5" fill="var(--danger)">− return amount - percent</text>
    <text x="26" y="42.5" fill="var(--ok)">+ return amount * (100 - perc…</text>
    <text x="26" y="64" fill="var(--muted)">3 passed</text>
  </svg>
);

export const KillArt = () => (
  <svg {...frame}>
    <text x="18" y="27" fill="var(--muted)">a1</text>
    <text x="18" y="57" fill="var(--muted)">b2</text>
    <rect x="38" y="15" width="76" height="16" rx="4" fill="var(--danger-soft)" stroke="var(--danger)" />
    <rect x="126" y="45" width="72" height="16" rx="4" fill="var(--ok-soft)" stroke="var(--ok)" />
    <path d="M114 23c10 0 2 30 12 30" fill="none" stroke="var(--ok)" strokeWidth="1.5" />
    <text x="122" y="27" fill="var(--danger)">killed</text>
    <text x="134" y="56.5" fill="var(--ok)">goes on</text>
  </svg>
);

export const RetryArt = () => (
  <svg {...frame}>
    <path d="M30 38h156" stroke="var(--border-strong)" strokeWidth="1.2" fill="none" />
    {[52, 104].map((x) => (
      <g key={x}>
        <circle cx={x} cy="38" r="8" fill="var(--warn-soft)" stroke="var(--warn)" strokeWidth="1.2" />
        <path d={`M${x} 34v4.5M${x} 41.2v.1`} stroke="var(--warn)" strokeWidth="1.4" strokeLinecap="round" />
      </g>
    ))}
    <circle cx="160" cy="38" r="8" fill="var(--ok-soft)" stroke="var(--ok)" strokeWidth="1.2" />
    <path d="m156.5 38.3 2.4 2.4 4.6-5.2" fill="none" stroke="var(--ok)" strokeWidth="1.4" strokeLinecap="round" />
    <text x="62" y="30" fill="var(--muted)">1 s</text>
    <text x="122" y="30" fill="var(--muted)">2 s</text>
    <text x="136" y="64" fill="var(--ok)">answered</text>
  </svg>
);
