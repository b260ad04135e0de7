// What blocks have found of a row is joined by another dispatch.
@group(0) @binding(5) var<storage, read_write> parts: array<Part>;      // [R, BLOCKS]
