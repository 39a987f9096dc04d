//! Request and response heads.
