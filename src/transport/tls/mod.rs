//! TLS with the user's own `ssl.SSLContext`.
//!
//! The code that runs once per connection is CPython's: `wakeloop._net.tls.SSLProtocol` inherits from asyncio's
//! SSLProtocol. So handshake, shutdown, timeouts, certificates, log lines and errors are those of the interpreter. The
//! code that runs per message is native, and comes first in the class's method resolution order:
//! - [`connection`]: the state that both halves share
//! - [`read`]: decrypts what a stream transport has received, and delivers it to the application's protocol
//! - [`write`](mod@write): encrypts what the application's protocol writes
//! - [`engine`]: the cryptography. [`choice`] chooses one of two engines: [`native`] calls the process's libssl
//!   ([`crate::libssl`]) with memory of ours, [`object`] calls CPython's SSLObject and MemoryBIO.
//! - [`transport`]: the application's transport
//!
//! ```text
//!   socket -> Stream -> read -> engine -> ProtocolSink -> application's protocol
//!   socket <- Stream <- write <- engine <- queue of plaintext <- SSLTransport.write
//! ```
//!
//! **Buffers** belong to the loop, not to connections. Ciphertext is received into one scratch vector, and decrypted
//! into another; a large message is decrypted into the `bytes` that the protocol gets. Plaintext is encrypted into a
//! third vector. A vector is moved out of the loop while it is in use, so other code gets another one. A connection
//! stores only data that has to wait: ciphertext while reading is paused or a record is incomplete, plaintext while the
//! socket is full.
//!
//! **Reentrancy.** Any call into Python may close the connection, write to it, pause it or replace its protocol. So
//! nothing is borrowed during such a call, and the state is read again after it. OpenSSL may call Python code too, for
//! keys, names and messages. While it is on the stack (`in_engine`), the connection neither reads nor writes, and new
//! writes are sent afterwards.

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
