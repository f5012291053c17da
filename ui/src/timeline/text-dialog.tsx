/** The text of a file of a message, over the page. Loaded with the first one that is opened. */
import { useQuery } from "@tanstack/react-query";
import { queryKeys } from "@/api/queries";
import { ErrorNote, Skeleton } from "@/components";
import { Dialog } from "@/components/dialog";
import { CodeBlock, languageOf } from "@/text/code";
import { Markdown } from "@/text/markdown";

/** The rest is a download. */
const MAX_CHARS = 400_000;

export default function TextDialog({ url, name, onClose }: { readonly url: string; readonly name: string; readonly onClose: () => void }) {
  const { data, error } = useQuery({
    queryKey: queryKeys.fileText(url),
    queryFn: async ({ signal }) => {
      const reply = await fetch(url, { signal });
      if (!reply.ok) throw new Error(reply.status === 404 ? "This file is no longer there." : "The file could not be read. Try again.");
      return reply.text();
    },
    retry: false,
  });
  const language = languageOf(name);
  const text = data?.slice(0, MAX_CHARS) ?? "";
  return (
    <Dialog open onOpenChange={onClose} title={name} wide>
      {error !== null && <ErrorNote error={error} />}
      {data === undefined && error === null && <Skeleton rows={6} />}
      {data !== undefined && (language === "md" ? <Markdown text={text} /> : <CodeBlock text={text} language={language} />)}
      {data !== undefined && data.length > MAX_CHARS && <p className="tone-muted">This is its beginning. Download it for the rest.</p>}
    </Dialog>
  );
}
