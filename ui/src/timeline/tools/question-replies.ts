/** The reply to one question while it is being made: chosen options, own words, or both. */
export interface Reply {
  readonly labels: readonly string[];
  readonly text: string;
}

export const NO_REPLY: Reply = { labels: [], text: "" };

export function isAnswered(reply: Reply): boolean {
  return reply.labels.length > 0 || reply.text.trim() !== "";
}

/** Of several only if the question allows it. */
export function toggled(reply: Reply, label: string, isMulti: boolean): Reply {
  if (!isMulti) return { ...reply, labels: [label] };
  const isOn = reply.labels.includes(label);
  return { ...reply, labels: isOn ? reply.labels.filter((one) => one !== label) : [...reply.labels, label] };
}
