"""The store contract on DynamoDB's protocol: on dynalite, which honours conditions."""

import pytest

from support.conditional_contract import ConditionalContract

pytestmark = pytest.mark.dynamodb


class TestDynamoDBStore(ConditionalContract):
    @pytest.fixture
    def url(self, dynalite):
        return dynalite.url()

    @pytest.fixture
    def table(self, dynalite):
        return dynalite.new_table()

    longest_key = 2048

    @pytest.fixture
    def set_status(self, dynalite, table):
        def set_status(key, status):
            dynalite.ask(
                "UpdateItem",
                TableName=table,
                Key={"id": {"S": key}},
                UpdateExpression="SET #status = :status",
                ExpressionAttributeNames={"#status": "status"},
                ExpressionAttributeValues={":status": {"S": status}},
            )

        return set_status
