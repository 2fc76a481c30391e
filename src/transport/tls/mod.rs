//! TLS on the user's own `ssl.SSLContext`.
//!
//! What runs once per connection is CPython's: `wakeloop._tls.SSLProtocol` inherits from asyncio's SSLProtocol,
//! so that handshake, shutdown, timeouts, certificates, log lines and errors are those of the interpreter at
//! hand. What runs per packet is native and comes first in its method order: [`connection`] is the state that
//! both halves share, [`read`] decrypts what a stream transport has received and hands it to the
//! application's protocol, [`write`] encrypts what that writes. [`engine`] does the cryptography, in one of
//! two ways, of which [`choice`] takes one: [`native`] calls the process's own libssl ([`crate::libssl`]) on memory of
//! ours, [`object`] drives CPython's SSLObject and MemoryBIO. [`transport`] is the application's transport.
//!
//! ```text
//!   socket -> Stream -> read -> engine -> ProtocolSink -> application's protocol
//!   socket <- Stream <- write <- engine <- queue of plaintext <- SSLTransport.write
//! ```
//!
//! **Buffers** belong to the loop, not to connections: ciphertext is received into one scratch vector and
//! decrypted into another, or a large message into the `bytes` that the protocol gets; plaintext is encrypted
//! into a third. They are taken out of the loop while they are in use, so whatever Python code does in between
//! finds others. A connection keeps only what could not go on: a piece of ciphertext while reading is paused,
//! plaintext while the socket is full.
//!
//! **Reentrancy.** Any call into Python may close the connection, write to it, pause it or replace its
//! protocol: nothing is borrowed across such a call, and the state is read again after it. While OpenSSL
//! itself is on the stack (it may call back into Python for keys, names and messages) the connection neither
//! reads nor writes: `in_engine` says so, and what was written meanwhile leaves afterwards.

mod choice;
pub(crate) mod connection;
pub(crate) mod engine;
mod native;
mod object;
pub(crate) mod python;
pub(crate) mod read;
mod records;
mod ssl_module;
pub(crate) mod transport;
pub(crate) mod write;
