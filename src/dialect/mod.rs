//! The two API shapes: what a request says, what an answer says, and one written as the other. Pure.
