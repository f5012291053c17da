/** Routes of the page. */
import { Suspense } from "react";
import { useLocation } from "wouter";
import { Announcer, ErrorBoundary, Toasts } from "@/components";
import { EmbeddedChat, SettingsPages } from "@/shell/areas";
import { isEmbedded, isSettingsPath, noteEmbedded } from "@/shell/routes";
import { Session } from "@/shell/sign-in/session";
import { Shell } from "@/shell/shell";

noteEmbedded(window.location.pathname);

function Screen() {
  const [path] = useLocation();
  const screen = isEmbedded() ? <EmbeddedChat /> : isSettingsPath(path) ? <SettingsPages /> : <Shell />;
  return (
    <ErrorBoundary what="The page cannot be shown." resetKey={path} className="home">
      <Suspense>{screen}</Suspense>
    </ErrorBoundary>
  );
}

export function App() {
  return (
    <>
      <ErrorBoundary what="The page cannot be shown." className="home">
        <Session>
          <Screen />
        </Session>
      </ErrorBoundary>
      <Announcer />
      <Toasts />
    </>
  );
}
