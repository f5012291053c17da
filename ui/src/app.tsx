/** Routes of the page. */
import { Suspense } from "react";
import { useLocation } from "wouter";
import { Announcer, Toasts } from "@/components";
import { EmbeddedChat, SettingsPages } from "@/shell/areas";
import { isEmbedded, isSettingsPath, noteEmbedded } from "@/shell/routes";
import { Session } from "@/shell/sign-in/session";
import { Shell } from "@/shell/shell";

noteEmbedded(window.location.pathname);

function Screen() {
  const [path] = useLocation();
  if (isEmbedded()) {
    return (
      <Suspense>
        <EmbeddedChat />
      </Suspense>
    );
  }
  if (!isSettingsPath(path)) return <Shell />;
  return (
    <Suspense>
      <SettingsPages />
    </Suspense>
  );
}

export function App() {
  return (
    <>
      <Session>
        <Screen />
      </Session>
      <Announcer />
      <Toasts />
    </>
  );
}
