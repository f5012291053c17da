/** Sends files of this computer into a directory of a workspace, as one tar archive of any size. */
import { api } from "@/api/client";
import type { components } from "@/api/schema";

const BLOCK = 512;
const MAX_NAME_BYTES = 100;
const UPLOAD_TIMEOUT_MS = 3_600_000;

export async function uploadFiles(workspaceId: string, directory: string, files: readonly File[]): Promise<components["schemas"]["UnpackedFiles"]> {
  return api.PUT("/api/v1/workspaces/{workspace_id}/archive", {
    path: { workspace_id: workspaceId },
    query: { path: directory },
    body: packFiles(files),
    headers: { "Content-Type": "application/x-tar" },
    timeoutMs: UPLOAD_TIMEOUT_MS,
  });
}

/** A name that the archive cannot hold: it has a slash, or is too long. */
export function badName(name: string): boolean {
  return name === "" || name.includes("/") || new TextEncoder().encode(name).length > MAX_NAME_BYTES;
}

export function packFiles(files: readonly File[]): Blob {
  const parts: BlobPart[] = [];
  for (const file of files) parts.push(tarHead(file.name, file.size, file.lastModified), file, new Uint8Array((BLOCK - (file.size % BLOCK)) % BLOCK));
  parts.push(new Uint8Array(2 * BLOCK));
  return new Blob(parts, { type: "application/x-tar" });
}

function tarHead(name: string, size: number, modifiedMs: number): Uint8Array<ArrayBuffer> {
  const head = new Uint8Array(BLOCK);
  const put = (text: string, at: number) => head.set(new TextEncoder().encode(text), at);
  const octal = (value: number, digits: number) => Math.floor(value).toString(8).padStart(digits, "0");
  put(name, 0);
  put("0000644\0", 100);
  put("0000000\0", 108);
  put("0000000\0", 116);
  put(`${octal(size, 11)}\0`, 124);
  put(`${octal(Math.max(0, modifiedMs / 1000), 11)}\0`, 136);
  put("        ", 148);
  put("0", 156);
  put("ustar\x0000", 257);
  const sum = head.reduce((total, byte) => total + byte, 0);
  put(`${octal(sum, 6)}\0 `, 148);
  return head;
}
