// The columns of one matrix.
const SEAM = 0u;        // chunks in front of another one

// The number of a chunk of 32 columns of a row of W, where a row has so many.
fn chunk_of_row(row: u32, chunk: u32, chunks: u32) -> u32 { return row * chunks + chunk; }
