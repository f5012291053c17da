/** Small pictures on the demo cards. */
const frame = { viewBox: "0 0 216 76", preserveAspectRatio: "xMidYMid meet", "aria-hidden": true } as const;

export const FixArt = () => (
  <svg {...frame} className="is-mono">
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

export const TreeArt = () => (
  <svg {...frame}>
    <path d="M52 38h24M76 38c10 0 6-18 16-18h10M76 38c10 0 6 18 16 18h10" fill="none" stroke="var(--border-strong)" strokeWidth="1.2" />
    <circle cx="42" cy="38" r="9" fill="var(--accent-soft)" stroke="var(--accent)" strokeWidth="1.2" />
    {[20, 56].map((y) => (
      <g key={y}>
        <rect x="102" y={y - 9} width="86" height="18" rx="4" fill="var(--ok-soft)" stroke="var(--ok)" />
        <path d={`m110 ${y}.3 2.4 2.4 4.6-5.2`} fill="none" stroke="var(--ok)" strokeWidth="1.4" strokeLinecap="round" />
      </g>
    ))}
    <text x="124" y="24" fill="var(--ok)">the code</text>
    <text x="124" y="60" fill="var(--ok)">the tests</text>
  </svg>
);
