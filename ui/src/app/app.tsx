/** Routes of the page. */
import { Suspense } from "react";
import { useLocation } from "wouter";
import { ErrorBoundary } from "@/components";
import { Announcer } from "@/platform/announcer";
import { isEmbedded, isSettingsPath, noteEmbedded } from "@/platform/routes";
import { Toasts } from "@/platform/toasts";
import { EmbeddedChat, SettingsPages } from "./areas";
import { Shell } from "./shell";
import { Session } from "./sign-in/session";

noteEmbedded(window.location.pathname);

function Screen() {
  const [path] = useLocation();
  const screen = isEmbedded() ? <EmbeddedChat /> : isSettingsPath(path) ? <SettingsPages /> : <Shell />;
  return (
    <ErrorBoundary what="The page cannot be shown." resetKey={path} className="app-home">
      <Suspense>{screen}</Suspense>
    </ErrorBoundary>
  );
}

export function App() {
  return (
    <>
      <ErrorBoundary what="The page cannot be shown." className="app-home">
        <Session>
          <Screen />
        </Session>
      </ErrorBoundary>
      <Announcer />
      <Toasts />
    </>
  );
}
