// Runs before the first paint, so that the page never shows the other theme for a moment.
try {
  const theme = localStorage.getItem("chatd.theme");
  if (theme && theme !== "system") document.documentElement.dataset.theme = theme;
} catch {
  // A browser without storage follows the system.
}
