/**
 * Whether the list follows its end. It does while the end is in reach; any move upwards ends it at
 * once, and only a move downwards to the end begins it again. Pure: the list feeds it what happens.
 */
const REACH_PX = 48;

export interface ScrollBox {
  readonly top: number;
  readonly height: number;
  readonly viewport: number;
}

export class Follower {
  private following = true;
  private last: ScrollBox = { top: 0, height: 0, viewport: 0 };

  get isFollowing(): boolean {
    return this.following;
  }

  /** Wheel, finger or key wants to go up. */
  moveUp(): void {
    this.following = false;
  }

  /** The user asked for the end, or sent a message. */
  attach(): void {
    this.following = true;
  }

  /** A place in the middle was asked for. */
  detach(): void {
    this.following = false;
  }

  /** The list itself set the position: no sign of what the user wants. */
  moved(box: ScrollBox): void {
    this.last = box;
  }

  /** The browser says where the list is, or it was looked at. */
  scrolled(box: ScrollBox): void {
    const before = this.last;
    this.last = box;
    // A list that got shorter is moved by the browser, not by the user.
    const isResized = box.height < before.height || box.viewport !== before.viewport;
    if (box.top < before.top - 1 && !isResized) this.following = false;
    else if (box.top > before.top && isAtEnd(box)) this.following = true;
  }
}

export function isAtEnd({ top, height, viewport }: ScrollBox): boolean {
  return height - top - viewport <= REACH_PX;
}

/** Keys that scroll up while the list has the focus. */
export function isUpKey(key: string, isShifted: boolean): boolean {
  return key === "ArrowUp" || key === "PageUp" || key === "Home" || (key === " " && isShifted);
}
