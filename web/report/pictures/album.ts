// Unpacks pictures when they are first wanted, and lets go of those not wanted for longest.

import type { Chunk } from "../../shared/generated/report_format";
import { type Frame, unpacked } from "../data/run";

const LARGEST = 200e6; // bytes of unpacked pictures

export class Album {
  private readonly chunks = new Map<number, Uint8Array | null>(); // by block, the last wanted last; null while being unpacked
  private size = 0;

  constructor(
    private readonly textOf: (id: string) => string,
    private readonly whenRead: () => void,
  ) {}

  /** The codes of a frame, or nothing as long as they are being unpacked. */
  codes(frame: Frame): Uint8Array | null {
    const { block } = frame.chunk;
    const data = this.chunks.get(block);
    if (data === undefined) void this.read(frame.chunk);
    if (!data) return null;
    this.chunks.delete(block);
    this.chunks.set(block, data);
    const size = sizeOf(frame.chunk);
    return data.subarray(frame.number * size, (frame.number + 1) * size);
  }

  private async read(chunk: Chunk): Promise<void> {
    this.chunks.set(chunk.block, null);
    const data = await unpacked(this.textOf(`pictures-${chunk.block}`));
    const size = sizeOf(chunk);
    for (let i = size; i < data.length; i++) data[i]! += data[i - size]!; // each frame is written as what it adds to the one before
    this.size += data.length;
    for (const [block, old] of this.chunks) {
      if (this.size <= LARGEST) break;
      if (!old) continue;
      this.size -= old.length;
      this.chunks.delete(block);
    }
    this.chunks.set(chunk.block, data);
    this.whenRead();
  }
}

function sizeOf(chunk: Chunk): number {
  return chunk.kept.reduce((product, length) => product * length, 1);
}
