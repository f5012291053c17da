/** Routes of the page. */
import { Suspense } from "react";
import { useLocation } from "wouter";
import { Announcer, Toasts } from "@/components";
import { SettingsPages } from "@/shell/areas";
import { isSettingsPath } from "@/shell/routes";
import { Session } from "@/shell/sign-in/session";
import { Shell } from "@/shell/shell";

function Screen() {
  const [path] = useLocation();
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
