/** The entry of the page: its providers and its routes. */
import "@fontsource-variable/inter/wght.css";
import "@fontsource-variable/jetbrains-mono/wght.css";
import "@/styles/fonts.css";
import "@/styles/index.css";
import { StrictMode, Suspense } from "react";
import { createRoot } from "react-dom/client";
import { useLocation } from "wouter";
import { QueryProvider } from "@/api/queries";
import { ErrorBoundary } from "@/components";
import { ConnectionProvider } from "@/connection";
import { keepPageOnDrop, reloadWhenStale } from "@/platform/browser";
import { isEmbedded, isSettingsPath, noteEmbedded } from "@/platform/routes";
import { Announcer, Toasts } from "@/platform/toasts";
import { EmbeddedChat, SettingsPages } from "./areas";
import { Session } from "./session";
import { Shell } from "./shell";

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

function App() {
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

reloadWhenStale();
keepPageOnDrop();
const root = document.getElementById("root");
if (root === null) throw new Error("index.html has no element with the id root");
createRoot(root).render(
  <StrictMode>
    <QueryProvider>
      <ConnectionProvider>
        <App />
      </ConnectionProvider>
    </QueryProvider>
  </StrictMode>,
);
