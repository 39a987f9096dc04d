//! Message bodies: by length, chunked, or to the end of the connection.
