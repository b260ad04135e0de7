// What a workgroup has of the queries of a step: neighbours of one sequence, rows or heads of rows.
struct Block {
    first: u32,     // of all queries
    count: u32,
    position: u32,  // of the row of the first in its sequence
    segment: u32,
}
