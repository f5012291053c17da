import type { ReactNode } from "react";

/** A screen of a phone without a `main` of its own: gives it one, with its heading. */
export function PhoneScreen({ title, children }: { readonly title: string; readonly children: ReactNode }) {
  return (
    <main className="app-contents" id="main" tabIndex={-1}>
      <h1 className="ui-screen-reader">{title}</h1>
      {children}
    </main>
  );
}
