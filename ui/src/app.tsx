/** Routes of the page. */
export function App() {
  return <main className="chat">chatd</main>;
}
