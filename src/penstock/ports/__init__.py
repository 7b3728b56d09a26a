"""What a store must offer, stated as guarantees. Services know these and no store."""

from penstock.ports.consumers import ConsumerReader, ConsumerWriter
from penstock.ports.leases import InstanceReader, InstanceWriter, LeaseReader, LeaseWriter
from penstock.ports.presence import PresenceReader, PresenceWriter
from penstock.ports.store import Capabilities, Store, Transaction, Writer
from penstock.ports.topics import TopicReader, TopicWriter
from penstock.ports.wake import Wake

__all__ = [
    "Capabilities",
    "ConsumerReader",
    "ConsumerWriter",
    "InstanceReader",
    "InstanceWriter",
    "LeaseReader",
    "LeaseWriter",
    "PresenceReader",
    "PresenceWriter",
    "Store",
    "TopicReader",
    "TopicWriter",
    "Transaction",
    "Wake",
    "Writer",
]
