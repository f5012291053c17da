/** Focus stays in the text box while the page changes from a new chat to the one that it became. */
let wished: string | null = null;

export function wishFocus(chatId: string): void {
  wished = chatId;
}

/** True once for the chat. */
export function takeFocusWish(chatId: string): boolean {
  const isWished = wished === chatId;
  if (isWished) wished = null;
  return isWished;
}
