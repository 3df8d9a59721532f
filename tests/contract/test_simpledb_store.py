"""The store contract on SimpleDB's protocol: on a fake that holds what is documented."""

from dataclasses import replace

import pytest

from psched.stores.simpledb.encoding import encode
from support.conditional_contract import ConditionalContract

pytestmark = pytest.mark.dynamodb


class TestSimpleDBStore(ConditionalContract):
    @pytest.fixture
    def url(self, simpledb):
        return simpledb.url()

    @pytest.fixture
    def table(self, simpledb):
        return simpledb.new_domain()

    longest_key = 1024

    @pytest.fixture
    def set_status(self, backend_factory):
        domain = backend_factory()._domain

        def set_status(key, status):
            domain.begin()
            item = domain.read([key])[key]
            written = encode(replace(item, row=replace(item.row, status=status)))
            parameters = {"ItemName": key}
            for number, (name, value) in enumerate(written.items(), 1):
                attribute = f"Attribute.{number}"
                parameters |= {f"{attribute}.Name": name, f"{attribute}.Value": value}
                parameters[f"{attribute}.Replace"] = "true"
            domain._connector.ask("PutAttributes", parameters)

        return set_status
