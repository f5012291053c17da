/** Two soft notes, made here: no file is loaded. Of several tabs one plays. */
const HOLD_MS = 3000;

function play(): void {
  const audio = new AudioContext();
  const start = audio.currentTime;
  [587.33, 880].forEach((frequency, index) => {
    const note = audio.createOscillator();
    const volume = audio.createGain();
    note.frequency.value = frequency;
    const at = start + index * 0.14;
    volume.gain.setValueAtTime(0, at);
    volume.gain.linearRampToValueAtTime(0.08, at + 0.02);
    volume.gain.exponentialRampToValueAtTime(0.0001, at + 0.5);
    note.connect(volume).connect(audio.destination);
    note.start(at);
    note.stop(at + 0.5);
  });
  setTimeout(() => void audio.close(), 1500);
}

/** Plays once for what `about` names, also when several tabs ask at the same time. */
export async function playChime(about: string): Promise<void> {
  await navigator.locks.request(`chatd.chime:${about}`, { ifAvailable: true }, async (lock) => {
    if (lock === null) return;
    play();
    await new Promise((resolve) => setTimeout(resolve, HOLD_MS));
  });
}
