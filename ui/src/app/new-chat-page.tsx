import { Suspense } from "react";
import { useIsDemo } from "@/api/models";
import { usePreference } from "@/platform/preferences";
import { useIsPhone } from "@/platform/use-media";
import { Composer, FirstScreen } from "./areas";
import { SidebarButton } from "./top-bar/top-bar";

/** An empty composer. Without a provider it is the first screen, with the demos. */
export function NewChatPage() {
  const isDemo = useIsDemo();
  const isPhone = useIsPhone();
  const [hidden] = usePreference("sidebarHidden");
  return (
    <>
      {(isPhone || hidden) && (
        <header className="app-bar is-plain">
          <SidebarButton />
        </header>
      )}
      <div className="app-home">
        <div className="app-home-column">
          <h1>What should the agent do?</h1>
          <p className="ui-lead">It keeps working when you close this page, and another worker takes over if one breaks.</p>
          <Suspense>
            <Composer chatId={null} />
          </Suspense>
          {/* On its own: while it is loaded, the box keeps its focus. */}
          <Suspense>{isDemo && <FirstScreen />}</Suspense>
        </div>
      </div>
    </>
  );
}
