/** Text with the found words marked. Places count characters, as the server's do. */
export function Highlighted({ text, places = [] }: { text: string; places?: readonly (readonly [number, number])[] | undefined }) {
  const characters = Array.from(text);
  const parts: React.ReactNode[] = [];
  let done = 0;
  for (const [start, end] of places) {
    if (start < done || end <= start) continue;
    parts.push(characters.slice(done, start).join(""), <mark key={start}>{characters.slice(start, end).join("")}</mark>);
    done = end;
  }
  parts.push(characters.slice(done).join(""));
  return <>{parts}</>;
}
