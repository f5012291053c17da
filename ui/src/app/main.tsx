import "@fontsource-variable/inter/wght.css";
import "@fontsource-variable/jetbrains-mono/wght.css";
import "@/styles/fonts.css";
import "@/styles/index.css";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { QueryProvider } from "@/api/queries";
import { ConnectionProvider } from "@/connection";
import { keepPageOnDrop, reloadWhenStale } from "@/platform/stale-build";
import { App } from "./app";

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
