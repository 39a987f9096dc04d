//! The server side of one HTTP/1.1 connection: bytes in, whole requests out.
