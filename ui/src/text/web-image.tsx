/**
 * An image of the web in a text. Looking at one tells its host who looks, so nothing is fetched before a press, and then by
 * chatd's server: the browser itself asks no other host.
 */
import { ExternalLink, Image } from "lucide-react";
import { createContext, lazy, type ReactNode, Suspense, useContext, useEffect, useMemo, useState } from "react";
import { ApiError, csrfHeaders, localError, readError } from "@/api/client";
import { Icon, Spinner } from "@/components";

const Lightbox = lazy(async () => ({ default: (await import("@/components/lightbox")).Lightbox }));
const TIMEOUT_MS = 30_000;
/** Of one chat; the oldest is forgotten, and is loaded again by another press. */
const MAX_KEPT = 30;

export interface LoadedImages {
  readonly chatId: string;
  readonly urls: Map<string, string>;
}

/** The chat in which a reader may load images of the web. Elsewhere they are links. */
const Context = createContext<LoadedImages | null>(null);

/** Keeps what was loaded while the chat is open: rows come and go. */
export function WebImages({ chatId, children }: { readonly chatId: string; readonly children: ReactNode }) {
  const loaded = useMemo<LoadedImages>(() => ({ chatId, urls: new Map() }), [chatId]);
  useEffect(
    () => () => {
      loaded.urls.forEach((url) => URL.revokeObjectURL(url));
      loaded.urls.clear();
    },
    [loaded],
  );
  return <Context value={loaded}>{children}</Context>;
}

async function load({ chatId, urls }: LoadedImages, url: string): Promise<string> {
  let reply: Response;
  try {
    reply = await fetch(`/api/v1/chats/${encodeURIComponent(chatId)}/web-images`, {
      method: "POST",
      credentials: "same-origin",
      headers: { "Content-Type": "application/json", ...(await csrfHeaders()) },
      body: JSON.stringify({ url }),
      signal: AbortSignal.timeout(TIMEOUT_MS),
    });
  } catch (error) {
    throw error instanceof ApiError ? error : localError("network");
  }
  if (!reply.ok) throw await readError(reply);
  const made = URL.createObjectURL(await reply.blob());
  urls.set(url, made);
  const oldest = urls.size > MAX_KEPT ? urls.keys().next().value : undefined;
  if (oldest !== undefined) {
    URL.revokeObjectURL(urls.get(oldest) ?? "");
    urls.delete(oldest);
  }
  return made;
}

export function WebImage({ url, alt }: { readonly url: string; readonly alt: string }) {
  const images = useContext(Context);
  const [shown, setShown] = useState(() => images?.urls.get(url) ?? null);
  const [isLoading, setLoading] = useState(false);
  const [isOpen, setOpen] = useState(false);
  const [problem, setProblem] = useState<string | null>(null);
  const name = alt === "" ? "Image" : alt;
  const host = new URL(url).host;
  const elsewhere = { href: url, title: `Opens in a new tab: ${url}`, target: "_blank", rel: "noreferrer noopener" };
  if (images === null) {
    return (
      <a className="ui-chip" {...elsewhere}>
        <Icon of={Image} size="sm" />
        {name}
        <Icon of={ExternalLink} size="sm" />
      </a>
    );
  }
  const press = async () => {
    if (shown !== null) setOpen(true);
    if (shown !== null || isLoading) return;
    setLoading(true);
    setProblem(null);
    try {
      setShown(await load(images, url));
    } catch (error) {
      setProblem(error instanceof ApiError ? error.message : "It could not be loaded.");
    } finally {
      setLoading(false);
    }
  };
  const broken = () => {
    setShown(null);
    setProblem("The browser cannot show it.");
  };
  return (
    <span className="markdown-web">
      <span className={shown === null ? "ui-chip" : "markdown-web-shown"}>
        <button
          type="button"
          className="markdown-web-open"
          title={shown === null ? "Load it through the server" : undefined}
          aria-label={shown === null ? undefined : `Show ${name}`}
          aria-busy={isLoading || undefined}
          onClick={() => void press()}
        >
          {shown === null ? (
            <>
              {isLoading ? <Spinner /> : <Icon of={Image} size="sm" />}
              <span className="ui-ellipsis">
                <span className="ui-screen-reader">Load </span>
                {name}
              </span>
              <span className="tone-subtle ui-ellipsis">
                <span className="ui-screen-reader"> from </span>
                {host}
              </span>
            </>
          ) : (
            <img className="markdown-image" src={shown} alt={name} onError={broken} />
          )}
        </button>
        {shown === null && (
          <a className="markdown-web-link" {...elsewhere} aria-label={`Open ${name} of ${host} in a new tab`}>
            <Icon of={ExternalLink} size="sm" />
          </a>
        )}
      </span>
      {problem !== null && <span role="alert">{problem}</span>}
      {isOpen && shown !== null && (
        <Suspense>
          <Lightbox url={shown} name={name} onClose={() => setOpen(false)} />
        </Suspense>
      )}
    </span>
  );
}
