// Bytes that stand in a page as text.

/** Bytes of base64, whatever white space is around it. */
export function fromBase64(encoded: string): Uint8Array<ArrayBuffer> {
  const binary = atob(encoded.trim());
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

/** What was compressed by zlib and written in base64. */
export function inflate(encoded: string): Response {
  return new Response(new Blob([fromBase64(encoded)]).stream().pipeThrough(new DecompressionStream("deflate")));
}
