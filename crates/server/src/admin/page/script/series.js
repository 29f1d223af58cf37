// The charts that several views draw: which series of the server they have, and how they look.

import { bytes, bytesPerSecond, count, millis, percent, perSecond } from "./format.js";

/** @type {Object<string, import("./chart.js").Spec>} */
export const SPECS = {
  requests: {
    id: "requests", title: "Requests by verb", format: perSecond, height: 190,
    lines: [
      { name: "reads", label: "reads", colour: "--c1" },
      { name: "writes", label: "writes", colour: "--c2" },
      { name: "deletes", label: "deletes", colour: "--c3", dash: [7, 3] },
      { name: "counts", label: "counts", colour: "--c4", dash: [2, 2] },
      { name: "touches", label: "touches", colour: "--c5", dash: [7, 2, 2, 2] },
    ],
  },
  latency: {
    id: "latency", title: "Latency", format: millis, optional: true,
    lines: [
      { name: "p50_us", label: "p50", colour: "--c1", factor: 0.001 },
      { name: "p99_us", label: "p99", colour: "--c2", dash: [7, 3], factor: 0.001 },
      { name: "p999_us", label: "p99.9", colour: "--c3", dash: [2, 2], factor: 0.001 },
    ],
  },
  hits: {
    id: "hits", title: "Hit ratio", format: percent, top: 1,
    lines: [{ name: "hit_ratio", label: "reads that found their item", colour: "--c1" }],
  },
  cpu: {
    id: "cpu", title: "Busy processors", format: count,
    lines: [
      { name: "cpu_user", label: "user", colour: "--c1" },
      { name: "cpu_system", label: "system", colour: "--c2", dash: [7, 3] },
    ],
  },
  memory: {
    id: "memory", title: "Memory", format: bytes, binary: true,
    lines: [
      { name: "resident", label: "resident", colour: "--c1" },
      { name: "memory_used", label: "counted against the limit", colour: "--c2", dash: [7, 3] },
    ],
  },
  network: {
    id: "network", title: "Network", format: bytesPerSecond, binary: true,
    lines: [
      { name: "received", label: "received", colour: "--c1" },
      { name: "sent", label: "sent", colour: "--c2", dash: [7, 3] },
    ],
  },
  evictions: {
    id: "evictions", title: "Items that leave", format: perSecond,
    lines: [
      { name: "evictions", label: "evicted", colour: "--c3" },
      { name: "expired", label: "expired", colour: "--c4", dash: [2, 2] },
    ],
  },
  limits: {
    id: "limits", title: "Rate limits", format: perSecond, optional: true,
    lines: [
      { name: "limits_allowed", label: "allowed", colour: "--c4" },
      { name: "limits_refused", label: "over the limit", colour: "--c3", dash: [7, 3] },
    ],
  },
  unsynced: {
    id: "unsynced", title: "Un-synced bytes", format: bytes, binary: true, optional: true,
    lines: [{ name: "unsynced_bytes", label: "acknowledged, not yet durable", colour: "--c2" }],
  },
  commit: {
    id: "commit", title: "Log", format: millis, optional: true,
    lines: [
      { name: "commit_us_p99", label: "commit p99", colour: "--c1", factor: 0.001 },
      { name: "unsynced_ms", label: "age of un-synced bytes", colour: "--c2", dash: [7, 3] },
    ],
  },
  written: {
    id: "written", title: "Written to devices", format: bytesPerSecond, binary: true, optional: true,
    lines: [{ name: "device_written", label: "written", colour: "--c1" }],
  },
  flash: {
    id: "flash", title: "Reads from the store", format: perSecond, optional: true,
    lines: [{ name: "flash_reads", label: "records read", colour: "--c1" }],
  },
  onDevices: {
    id: "on-devices", title: "Items that are only on devices", format: bytes, binary: true, optional: true,
    lines: [{ name: "bytes_flash", label: "bytes of items", colour: "--c1" }],
  },
};
