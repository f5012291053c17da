/** The page of a public link, for people without an account: no session, no connection, nothing that changes anything. */
import "@fontsource-variable/inter/wght.css";
import "@fontsource-variable/jetbrains-mono/wght.css";
import "@/styles/fonts.css";
import "@/styles/index.css";
import "@/styles/shared.css";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { ErrorBoundary } from "@/components";
import { SharedChat } from "./shared-chat";

const root = document.getElementById("root");
if (root === null) throw new Error("shared.html has no element with the id root");
createRoot(root).render(
  <StrictMode>
    <ErrorBoundary what="The chat cannot be shown." className="shared-page">
      <SharedChat />
    </ErrorBoundary>
  </StrictMode>,
);
